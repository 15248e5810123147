//! Untrusted bytes to named, checked views: each reader validates once, and what it gives back is infallible.
