"""Rules about applications beyond their field classes: labels of deployment tools, lineage settings, `$(NAME)`, UTF-8. Pure."""
