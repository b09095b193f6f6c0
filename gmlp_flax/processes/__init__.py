"""One run in several processes: start-up, signals, the watchdog, and filters of what they print."""
