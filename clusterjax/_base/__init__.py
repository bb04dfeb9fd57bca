"""What every room uses: dtypes, checks of arguments, batches, summaries."""
