"""What every other package stands on: errors, names, settings, durable files, parallel work, progress."""
