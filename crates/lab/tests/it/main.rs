mod analysis;
mod layers;
mod load;
mod sampler;
mod targets;
mod usl;
mod wire;
