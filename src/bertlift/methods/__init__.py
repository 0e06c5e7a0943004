"""Every explainer behind one call and one result type."""
