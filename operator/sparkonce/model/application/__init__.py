"""What is known of an application beyond the classes of its fields: whose labels they are, who asks, how text arrives. Pure."""
