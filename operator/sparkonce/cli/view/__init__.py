"""How results, keys and progress are shown: tables, words and lines. Decides nothing."""
