// The home page of the default theme inside `main`, for people who jump to the content with a screen reader.
import { h } from 'vue';
import Home from 'vitepress/dist/client/theme-default/components/VPHome.vue';

export default (_, { slots }) => h('main', h(Home, null, slots));
