"""What a page follows over its one socket: a module a topic, and the conversation about them."""
