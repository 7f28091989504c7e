"""The service that decides: it runs the rules, and its database remembers."""
