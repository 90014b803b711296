"""The discrete-event simulator of batching with speculation; not written yet, see CHANGELOG.md."""
