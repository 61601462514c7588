//! HMAC-SHA256 (RFC 2104), for the compiled cache and for seeds.

use sha2::{Digest, Sha256};

const BLOCK: usize = 64;

/// A key, ready to use.
#[derive(Clone)]
pub(crate) struct Key {
    inner: Sha256,
    outer: Sha256,
}

impl Key {
    pub(crate) fn new(key: &[u8; 32]) -> Self {
        let padded = |pad: u8| {
            let mut block = [pad; BLOCK];
            block.iter_mut().zip(key).for_each(|(b, k)| *b ^= k);
            Sha256::new().chain_update(block)
        };
        Self {
            inner: padded(0x36),
            outer: padded(0x5c),
        }
    }

    /// The code of `parts`, one after the other. Callers keep all but the last of fixed length.
    pub(crate) fn code(&self, parts: &[&[u8]]) -> [u8; 32] {
        let mut inner = self.inner.clone();
        parts.iter().for_each(|part| inner.update(part));
        self.outer
            .clone()
            .chain_update(inner.finalize())
            .finalize()
            .into()
    }
}

/// Whether two codes are equal, in a time that does not tell where they differ.
pub(crate) fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |all, (a, b)| all | (a ^ b)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc_4231_case_1() {
        let mut key = [0u8; 32];
        key[..20].fill(0x0b);
        assert_eq!(
            hex::encode(Key::new(&key).code(&[b"Hi ", b"There"])),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"
        );
        assert!(same(b"ab", b"ab") && !same(b"ab", b"ac") && !same(b"ab", b"a"));
    }
}
