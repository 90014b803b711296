"""What is asked of the server: when requests arrive, how long they are, and which of their drafts are right."""
