"""The topics that a page follows over its one WebSocket, and the session that serves them."""
