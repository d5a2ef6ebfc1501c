"""The experiments of the TAPAS report: a bookshop under an agreement, behind several doors."""
