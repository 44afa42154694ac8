"""What `evenstep demo` trains."""
