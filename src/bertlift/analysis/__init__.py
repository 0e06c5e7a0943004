"""What the numbers mean: token groups, profiles over the layers, clusters, the map."""
