"""A model as a captured graph: export, import rules, and the check against eager."""
