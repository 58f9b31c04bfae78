import { mount } from 'svelte';
import '../../lib/base.css';
import Ball from './Ball.svelte';

mount(Ball, { target: document.getElementById('app')! });
