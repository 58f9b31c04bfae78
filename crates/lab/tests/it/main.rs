mod usl;
