/// Prefetches a value into the cache of this core without waiting for it. Call it for a value that is needed soon
/// and was not used recently.
///
/// Cost: one instruction per 64 bytes. Does nothing on processors other than x86-64.
#[inline]
pub fn prefetch<T>(value: &T) {
    prefetch_at(value);
}

/// Prefetches like [`prefetch`], from an address that may no longer be valid.
#[inline]
pub fn prefetch_at<T>(address: *const T) {
    #[cfg(target_arch = "x86_64")]
    for line in 0..size_of::<T>().div_ceil(64) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let address = address.cast::<i8>().wrapping_add(line * 64);
        // SAFETY: a prefetch is only a hint; it reads and writes nothing, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address) };
    }
}
