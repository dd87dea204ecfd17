"""From policies, tasks and a key to a batch of episodes or its running sums, on the device or on the host."""
