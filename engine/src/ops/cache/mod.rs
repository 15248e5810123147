//! KV cache: new key or value rows, rounded or quantised to the cache's type, after the rows of earlier tokens:
//! `[T, Hkv, D]` to `[S, Hkv, D]`.
//!
//! The type is a property of the numerics ([`Numerics::to_cache`](crate::numerics::Numerics::to_cache)), so this folder
//! has no definition. The rows are kept by the model ([`KvLayer`](crate::model::KvLayer)).

pub(crate) mod exact;
pub(crate) mod faults;
