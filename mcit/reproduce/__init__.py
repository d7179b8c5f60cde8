"""Expected results: published and measured tables, with the command behind every number."""
