//! Models of the hub: names, the cache, downloads, and everything that can go wrong on the way.

#[cfg(feature = "hub")]
mod download;
#[cfg(feature = "hub")]
mod machine;
mod names;
#[cfg(feature = "hub")]
mod refusals;
#[cfg(feature = "hub")]
mod server;
