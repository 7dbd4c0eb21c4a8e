"""`draftproof serve`: OpenAI's routes over HTTP in front of one service."""
