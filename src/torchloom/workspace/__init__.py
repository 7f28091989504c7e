"""The user's own folders, copied for an app so that later edits do not reach it."""
