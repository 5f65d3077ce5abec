/// Where the engine takes random bytes from.
pub trait Entropy: Send + Sync + 'static {
    /// Fills the buffer; `false` if there is no randomness to be had (nothing runs then).
    fn fill(&self, buffer: &mut [u8]) -> bool;
}

/// The operating system's generator.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemEntropy;

impl Entropy for SystemEntropy {
    fn fill(&self, buffer: &mut [u8]) -> bool {
        getrandom::fill(buffer).is_ok()
    }
}
