//! Enums told apart by a `type` field whose variants may hold raw JSON.

/// Declares an enum of one-field variants that reads and writes as `{"type": "...", ...fields}`.
///
/// serde's own internally tagged enums buffer what they read, which raw JSON values do not
/// survive; this one looks at `type` first and then reads the variant from the same text, so
/// values of others travel byte for byte.
macro_rules! tagged {
    (
        $(#[$meta:meta])*
        pub enum $name:ident as $what:literal {
            $( $(#[$vmeta:meta])* $tag:literal => $variant:ident($inner:ty), )+
        }
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, serde::Serialize)]
        #[serde(tag = "type")]
        pub enum $name {
            $( $(#[$vmeta])* #[serde(rename = $tag)] $variant($inner), )+
        }

        impl $name {
            /// The value of this variant's `type` field.
            pub fn kind(&self) -> &'static str {
                match self { $( Self::$variant(_) => $tag, )+ }
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                use serde::de::Error as _;
                #[derive(serde::Deserialize)]
                struct Tag { #[serde(rename = "type")] kind: String }
                let raw = Box::<serde_json::value::RawValue>::deserialize(from)?;
                let Tag { kind } = serde_json::from_str(raw.get())
                    .map_err(|e| D::Error::custom(format!(concat!($what, ": {}"), e)))?;
                match kind.as_str() {
                    $( $tag => serde_json::from_str(raw.get())
                        .map(Self::$variant)
                        .map_err(|e| D::Error::custom(format!(concat!($what, " `", $tag, "`: {}"), e))), )+
                    other => Err(D::Error::custom(format!(
                        concat!("unknown ", $what, " type `{}`, expected one of: {}"),
                        other, [$($tag),+].join(", "),
                    ))),
                }
            }
        }
    };
}
