"""What `eagle3 <command>` does, one module a command; imported when the command is asked for."""
