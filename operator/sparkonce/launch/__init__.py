"""What starts, observes and stops an attempt's application."""
