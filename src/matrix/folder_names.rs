//! Folder names of cells.

use std::collections::BTreeMap;

use sha2::{Digest, Sha256};

/// Maximum length of a folder name in bytes; file systems allow 255.
const LONGEST: usize = 120;

/// Returns a unique and readable folder name for each combination of values. Characters with a meaning to file
/// systems or shells are replaced. Names differ not only in upper and lower case. A changed name ends with a hash.
pub(crate) fn names(combinations: &[Vec<String>]) -> Vec<String> {
    let plain: Vec<String> = combinations.iter().map(|values| plain(values)).collect();
    let mut alike: BTreeMap<String, usize> = BTreeMap::new();
    plain.iter().for_each(|name| *alike.entry(name.to_lowercase()).or_default() += 1);
    let own = |(values, name): (&Vec<String>, &String)| {
        let is_faithful = *name == values.join(SEPARATOR) && alike[&name.to_lowercase()] == 1;
        if is_faithful { name.clone() } else { format!("{name}-{}", hash(values)) }
    };
    combinations.iter().zip(&plain).map(own).collect()
}

const SEPARATOR: &str = "+";

fn plain(values: &[String]) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' };
    let values: Vec<String> = values.iter().map(|value| value.chars().map(plain).collect()).collect();
    let joined = values.join(SEPARATOR);
    // A leading dot would be a hidden file or a parent directory; a leading dash would be an option.
    let joined = if joined.starts_with(['.', '-']) { format!("_{joined}") } else { joined };
    joined.chars().take(LONGEST).collect()
}

fn hash(values: &[String]) -> String {
    let mut hash = Sha256::new();
    values.iter().for_each(|value| hash.update(format!("{} {value}", value.len())));
    hex::encode(&hash.finalize()[..4])
}
