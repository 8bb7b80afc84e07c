"""How a process that serves HTTP is reached: its address and certificate, and which connections of clients it keeps."""
