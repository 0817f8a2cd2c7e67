"""What people get to see: figures, plots, the page, results.json."""
