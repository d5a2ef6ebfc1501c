"""The experiments of the prefetch control paper, repeated with Tidegate's controllers."""
