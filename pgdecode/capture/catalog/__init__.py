"""What the footers of captured files say of the server's catalog."""
