"""Speed and endurance of ulak, measured; `bench/peers` holds the baselines."""
