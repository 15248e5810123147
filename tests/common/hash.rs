//! SHA-256, apart from the code under test.

use sha2::{Digest, Sha256};

pub fn sha256(content: &[u8]) -> String {
    Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect()
}
