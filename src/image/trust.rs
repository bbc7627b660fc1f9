//! Who may sign an image: minisign public keys from the kernel command line and the ramdisk.

/// Public keys. With none, images need no signature.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Keys(pub Vec<PublicKey>);

/// A minisign public key: the base64 line of its `.pub` file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublicKey(pub String);
