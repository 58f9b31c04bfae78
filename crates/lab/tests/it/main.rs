mod analysis;
mod load;
mod sampler;
mod targets;
mod usl;
mod wire;
