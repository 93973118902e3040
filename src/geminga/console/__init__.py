"""The console: what a broker's subscriptions, topics and the broker itself are doing, in a browser."""
