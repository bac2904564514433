"""One wheel: its name, archive, headers, RECORD; read, rewritten, checked."""
