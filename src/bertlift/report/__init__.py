"""What people look at: the theme, the figures, the HTML report."""
