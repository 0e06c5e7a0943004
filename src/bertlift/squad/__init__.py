"""Questions and passages: SQuAD 1.1/2.0 JSON read and checked, splits, the official metrics."""
