"""Training a model whose parameters are split over the processes."""
