"""What the figures of the sentiment model share: reviews, the trained model, its leaders."""
