"""What the numbers mean: token groups, profiles over the layers, clusters, the map; the check of the corpus."""
