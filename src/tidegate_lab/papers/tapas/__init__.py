"""The experiments of the TAPAS report: a bookshop with an agreement, behind several doors."""
