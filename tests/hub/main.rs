//! Models of the hub: names, the cache, downloads, and everything that can go wrong on the way.

#[cfg(feature = "hub")]
mod download;
#[cfg(feature = "hub")]
#[path = "../common/finished.rs"]
mod finished;
#[cfg(feature = "hub")]
#[path = "../common/hash.rs"]
mod hash;
#[cfg(feature = "hub")]
mod machine;
mod names;
#[cfg(feature = "hub")]
mod refusals;
#[cfg(feature = "hub")]
mod server;
