"""Shows results, keys and progress as tables, sentences and lines. Decides nothing."""
