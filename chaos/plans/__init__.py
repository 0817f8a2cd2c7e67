"""What a run does: scenario files, and random ones drawn from them."""
