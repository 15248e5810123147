//! Families of causes: the part of a model or of a run that is wrong.

use serde::{Serialize, Serializer};

macro_rules! families {
    ($($variant:ident $name:literal;)*) => {
        /// Part of a model or of a run that a cause belongs to, in the order of a forward pass.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum CauseFamily { $(#[doc = $name] $variant,)* }

        impl CauseFamily {
            /// Returns the name in tables.
            pub fn name(self) -> &'static str {
                match self { $(CauseFamily::$variant => $name,)* }
            }
        }
    };
}

families! {
    Tokens "tokens";
    Embeddings "embeddings";
    Norms "norms";
    Rope "RoPE";
    Attention "attention";
    Masks "masks";
    Cache "cache";
    Recurrence "recurrence";
    Activations "activations";
    Experts "experts";
    Residuals "residuals";
    Layers "layers";
    Linear "linear";
    Logits "logits";
    Sampling "sampling";
    Numerics "numerics";
    Passes "passes";
    Heads "heads";
    Dump "dump";
    Unnamed "unnamed";
}

impl Serialize for CauseFamily {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}
