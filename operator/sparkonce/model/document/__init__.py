"""Turns files into JSON values: `reader` is the one reader of documents, `yaml_reader` and `json_reader` its two languages."""
