"""From a table of fine-tuning experiments to published, registered models."""
